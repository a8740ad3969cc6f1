"""`python -m tests.vectors` makes the files of `vectors/` anew, but for those that people wrote."""

from tests.vectors.files import as_made, on_disk
from tests.vectors.recording import VECTORS

made = as_made()
for name in on_disk().keys() - made.keys():
    (VECTORS / name).unlink()
for name, content in made.items():
    (VECTORS / name).parent.mkdir(parents=True, exist_ok=True)
    (VECTORS / name).write_bytes(content)
print(f"{len(made)} files, {sum(map(len, made.values())):,} bytes")
