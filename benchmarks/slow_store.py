"""A store that stands in for S3: it waits before every answer, as a store far away does.

    python benchmarks/slow_store.py FOLDER PORT SECONDS [MB_PER_SECOND]

MB_PER_SECOND: the most of one connection. It serves the files below FOLDER/BUCKET as the objects of BUCKET: HEAD, GET of ranges, lists, PUT (also of parts, copies and
with conditions) and deletions. Attributes of objects are not kept.
"""

import asyncio
import math
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote
from xml.sax.saxutils import escape, unescape

from aiohttp import web

_MOST_KEYS = 1_000
"""The number of keys in one answer of a list, as in S3."""


class SlowStore:
    """The files below ``folder``; every answer comes after ``delay`` seconds, at ``rate`` bytes per second."""

    def __init__(self, folder: Path, delay: float, rate: float) -> None:
        self._folder, self._delay, self._rate = folder, delay, rate
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
        if request.method in ("PUT", "POST"):
            return await self._write(request, path)
        if not path.is_file():
            return web.Response(status=404)
        if request.method == "GET" and self._rate < math.inf and "Range" not in request.headers:
            return await self._paced(request, path)
        return web.FileResponse(path, chunk_size=1 << 20)

    async def _paced(self, request: web.Request, path: Path) -> web.StreamResponse:
        """Sends a whole file at ``rate``, by the time since the answer began."""
        response = web.StreamResponse(headers={"ETag": f'"{_tag(path)}"'})
        response.content_length = path.stat().st_size
        response.last_modified = path.stat().st_mtime
        await response.prepare(request)
        began, sent = time.monotonic(), 0
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                await response.write(piece)
                sent += len(piece)
                await asyncio.sleep(max(0.0, began + sent / self._rate - time.monotonic()))
        return response

    async def _write(self, request: web.Request, path: Path) -> web.Response:
        """A PUT of an object, of a part or of a copy; a POST that begins or ends an upload in parts, or deletes."""
        query = request.query
        if "delete" in query:
            keys = re.findall(r"<Key>(.*?)</Key>", await request.text())
            for key in keys:
                (path / unescape(key)).unlink(missing_ok=True)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return web.Response(
                text=f"<DeleteResult>{deleted}</DeleteResult>", content_type="application/xml"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if "uploads" in query:
            text = "<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>"
            return web.Response(text=text, content_type="application/xml")
        if "uploadId" in query and request.method == "POST":
            parts = sorted(path.parent.glob(f"{path.name}.part*"))
            with path.open("wb") as file:
                for part in parts:
                    file.write(part.read_bytes())
                    part.unlink()
            text = f"<CompleteMultipartUploadResult><ETag>{_tag(path)}</ETag></CompleteMultipartUploadResult>"
            return web.Response(text=text, content_type="application/xml")
        if source := request.headers.get("x-amz-copy-source"):
            shutil.copyfile(self._folder / unquote(source).lstrip("/"), path)
            text = f"<CopyObjectResult><ETag>{_tag(path)}</ETag></CopyObjectResult>"
            return web.Response(text=text, content_type="application/xml")
        wanted = request.headers.get("If-Match", "").strip('"')
        has_other = wanted and (not path.is_file() or _tag(path) != wanted)
        if has_other or (path.is_file() and "If-None-Match" in request.headers):
            return web.Response(status=412)
        number = f".part{int(query['partNumber']):05}" if "partNumber" in query else ""
        written = path.with_name(path.name + number)
        began, received = time.monotonic(), 0
        with written.open("wb") as file:
            async for piece in request.content.iter_chunked(1 << 20):
                file.write(piece)
                received += len(piece)
                await asyncio.sleep(max(0.0, began + received / self._rate - time.monotonic()))
        return web.Response(headers={"ETag": f'"{_tag(written)}"'})

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
    status, tag = path.stat(), _tag(path)
    changed = datetime.fromtimestamp(math.ceil(status.st_mtime), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{changed}</LastModified><ETag>&quot;{tag}&quot;</ETag>"
        f"<Size>{status.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _tag(path: Path) -> str:
    status = path.stat()
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"  # this and the date as aiohttp answers to HEAD


def main() -> None:
    folder, port, delay, *rate = sys.argv[1:]
    store = SlowStore(Path(folder), float(delay), float(rate[0]) * 1e6 if rate else math.inf)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", store.answer)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None, access_log=None)


if __name__ == "__main__":
    main()
