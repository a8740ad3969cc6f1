"""gRPC: the wire between processes."""

import os

# gRPC reads these when it is imported. The only suite of TLS 1.2 left needs an RSA certificate,
# which no party has, so that only TLS 1.3 is spoken. gRPC's own log lines repeat errors of ours.
# Its handlers of a fork abort processes that a holder's script forks (DataLoader's workers), and no
# fork of ours speaks gRPC.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"
