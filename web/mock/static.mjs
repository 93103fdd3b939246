// The built dashboard, as the service serves it: any path that is no file is the application.
import { createReadStream, existsSync } from "node:fs";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const dist = fileURLToPath(new URL("../dist", import.meta.url));
const types = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
  ".woff2": "font/woff2",
};

export function file(path, response) {
  const wanted = join(dist, normalize(path));
  const found = extname(path) && existsSync(wanted) ? wanted : join(dist, "index.html");
  response.writeHead(200, { "Content-Type": types[extname(found)] ?? "application/octet-stream" });
  createReadStream(found).pipe(response);
}
