"""gRPC: the wire between processes."""

import os

# gRPC reads these when it is imported. The only suite of TLS 1.2 left needs an RSA certificate,
# which no party has, so that only TLS 1.3 is spoken. gRPC's own log lines repeat errors of ours.
# gRPC's handlers of a fork abort processes that a data holder's script forks, such as workers of a
# DataLoader. They are switched off, because no forked process of ours uses gRPC.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"
