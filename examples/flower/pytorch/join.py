"""pytorchexample: The ClientApp as it is, as a client of secureps."""

from pytorchexample.client_app import app

import secureps as ps

ps.run_flower(app)
