"""A store that stands in for S3: it waits before every answer, as a store far away does.

    python benchmarks/slow_store.py FOLDER PORT SECONDS

It serves the files below FOLDER/BUCKET as the objects of BUCKET, to readers alone: HEAD, GET of ranges, lists.
"""

import asyncio
import math
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from xml.sax.saxutils import escape

from aiohttp import web

_MOST_KEYS = 1_000
"""The number of keys in one answer of a list, as in S3."""


class SlowStore:
    """The files below ``folder``; every answer comes after ``delay`` seconds."""

    def __init__(self, folder: Path, delay: float) -> None:
        self._folder, self._delay = folder, delay
        self._counts = Counter[str]()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answers one request; ``/counts`` tells and forgets how many there were."""
        bucket, _, key = request.path.strip("/").partition("/")
        if bucket == "counts":
            counts, self._counts = self._counts, Counter[str]()
            return web.json_response(counts)
        await asyncio.sleep(self._delay)
        if not key and request.method == "GET":
            self._counts["LIST"] += 1
            return self._list(bucket, request.query)
        self._counts[request.method] += 1
        path = self._folder / bucket / key
        if not path.is_file():
            return web.Response(status=404)
        return web.FileResponse(path, chunk_size=1 << 20)

    def _list(self, bucket: str, query: Mapping[str, str]) -> web.Response:
        root, prefix = self._folder / bucket, query.get("prefix", "")
        after, delimiter = query.get("continuation-token", ""), query.get("delimiter", "")
        above = root / prefix.rpartition("/")[0]
        keys = sorted(str(path.relative_to(root)) for path in above.rglob("*") if path.is_file())
        contents, folders = list[str](), dict[str, None]()
        for key in keys:
            if not key.startswith(prefix) or key <= after:
                continue
            below = key[len(prefix) :]
            if delimiter and delimiter in below:
                folders[prefix + below.partition(delimiter)[0] + delimiter] = None
            else:
                contents.append(key)
        more = contents[_MOST_KEYS - 1] if len(contents) > _MOST_KEYS else ""
        parts = [_entry(key, root / key) for key in contents[:_MOST_KEYS]]
        parts += [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders]
        token = f"<NextContinuationToken>{escape(more)}</NextContinuationToken>" if more else ""
        head = f"<Name>{bucket}</Name><KeyCount>{len(parts)}</KeyCount>"
        head += f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
        text = f"<ListBucketResult>{head}{token}{''.join(parts)}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")


def _entry(key: str, path: Path) -> str:
    status = path.stat()
    tag = f"{status.st_mtime_ns:x}-{status.st_size:x}"  # this and the date as aiohttp answers to HEAD
    changed = datetime.fromtimestamp(math.ceil(status.st_mtime), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{changed}</LastModified><ETag>&quot;{tag}&quot;</ETag>"
        f"<Size>{status.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def main() -> None:
    folder, port, delay = sys.argv[1:]
    store = SlowStore(Path(folder), float(delay))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", store.answer)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None, access_log=None)


if __name__ == "__main__":
    main()
