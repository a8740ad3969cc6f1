#!/bin/sh
# Makes all keys, once, and puts each party's kit into the party's own volume. Elsewhere each party
# makes its own keys, and an issuer who is not the aggregator certifies them.
set -eu
cd /srv/kits
if [ -e issuer/done ]; then exit 0; fi
rm -rf issuer/* ./*/kit  # what an interrupted start left

issue() { secureps keys issue issuer/kit --role "$1" --name "$2"; }
give() {  # VOLUME NAME...: the public part, and these parties' private keys
  volume=$1; shift
  mkdir -p "$volume/kit/private"
  cp -R issuer/kit/public "$volume/kit/public"
  for name; do cp -Rp "issuer/kit/private/$name" "$volume/kit/private/$name"; done
}

secureps keys init issuer/kit --plan /srv/study/plan.toml --hours 0  # the roster never expires
issue coordinator coordinator
issue observer observer
for i in 0 1; do issue shard "shard-$i"; done
for i in 1 2 3 4 5; do
  issue client "hospital-$i"
  issue holder "hospital-$i-holder"
done

give coordinator coordinator observer
for i in 0 1; do give "shard-$i" "shard-$i"; done
for i in 1 2 3 4 5; do give "hospital-$i" "hospital-$i" "hospital-$i-holder"; done
mkdir -p checkpoints
chown -R 10001:10001 coordinator shard-? hospital-? checkpoints  # the image's user
touch issuer/done
