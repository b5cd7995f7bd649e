// Node's own HTTP server, which tells what it has seen of each request. Usage: node server.js PORT
const http = require("node:http");

const server = http.createServer({ keepAlive: true }, (request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    const headers = [];
    for (let at = 0; at < request.rawHeaders.length; at += 2) {
      headers.push([request.rawHeaders[at].toLowerCase(), request.rawHeaders[at + 1]]);
    }
    const body = Buffer.concat(pieces).toString("latin1");
    const seen = JSON.stringify({ method: request.method, target: request.url, headers, body });
    response.setHeader("content-type", "application/json");
    // A response to HEAD has no body to tell it in.
    if (request.method === "HEAD") response.setHeader("x-seen", Buffer.from(seen).toString("base64"));
    response.setHeader("content-length", Buffer.byteLength(seen));
    response.end(seen);
  });
});
// Connections end when the proxy closes them, never in the middle of a test.
server.keepAliveTimeout = 0;
server.headersTimeout = 0;
server.requestTimeout = 0;
server.listen(Number(process.argv[2]), "127.0.0.1");
