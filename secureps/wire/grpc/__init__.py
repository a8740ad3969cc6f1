"""gRPC: the wire between processes."""

import os

# Before gRPC is imported, which has no option for this: the one suite of TLS 1.2 that is left wants
# an RSA certificate, and nobody here has one. TLS 1.3 has suites of its own. And what matters of
# gRPC's own lines on stderr is an error of ours.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"
