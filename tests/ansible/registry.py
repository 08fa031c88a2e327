#!/usr/bin/env python3
"""A package registry on loopback, as GitLab and Gitea are: registry.py FOLDER TOKEN-FILE PORT-FILE LOG PROCESSES

GitLab's path wants the token and sends on to a store of objects; Gitea's, the mirror, wants none. Each request is a line of LOG.
At each request the command lines of all processes of the machine, and so of every box, are added to PROCESSES: when a download is
under way, a secret in an argument can be seen there.
Invariant: neither the store nor the mirror gives a file to who shows it a token.
"""

import glob
import http.server
import os
import pathlib
import sys

folder, token_file, port_file, log, processes = map(pathlib.Path, sys.argv[1:])
token = token_file.read_text().strip()


def command_lines():
    for name in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            yield pathlib.Path(name).read_bytes().replace(b"\0", b" ") + b"\n"
        except OSError:
            pass  # It has ended.


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open(processes, "ab") as out:
            out.writelines(command_lines())
        shown = self.headers.get("Deploy-Token") or self.headers.get("Authorization")
        name = os.path.basename(self.path)
        if self.path.startswith("/api/v4/projects/7/packages/generic/monky-deployd/"):
            if shown != token:
                return self.end(401)
            return self.end(302, Location=f"/store/{name}")
        if self.path.startswith(("/store/", "/api/packages/monky/generic/monky-deployd/")):
            if shown:
                return self.end(400)
            file = folder / name
            return self.end(200, file.read_bytes()) if file.is_file() else self.end(404)
        return self.end(404)

    def end(self, status, body=b"", **headers):
        with open(log, "a") as out:
            print(status, self.path, file=out)
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
new = port_file.with_suffix(".new")
new.write_text(str(server.server_port))
new.rename(port_file)
server.serve_forever()
