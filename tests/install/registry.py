#!/usr/bin/env python3
"""Plays a registry of generic packages on loopback, for the installer's tests: serves the files of a folder, and writes down
what it was asked.

    registry.py FOLDER LOG PORT-FILE [--cut BYTES] [--redirect BASE] [--status CODE]

What lacks the header of $REGISTRY_HEADER ("Name: value") gets 401. --cut: sends the right length and only so many bytes. --redirect: sends everyone to
BASE + path. Invariant: every request is in LOG, with all its headers, before it is answered.
"""
import argparse
import http.server
import os
import pathlib

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("log", type=pathlib.Path)
parser.add_argument("port_file", type=pathlib.Path)
parser.add_argument("--cut", type=int)
parser.add_argument("--redirect")
parser.add_argument("--status", type=int)
options = parser.parse_args()
name, _, value = os.environ.get("REGISTRY_HEADER", "").partition(": ")


class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with options.log.open("a") as log:
            log.write(f"GET {self.path}\n")
            for header in self.headers.items():
                log.write("    {}: {}\n".format(*header))
        if options.status:
            return self.answer(options.status, b"")
        if name and self.headers.get(name) != value:
            return self.answer(401, b'{"message":"401 Unauthorized"}')
        if options.redirect:
            self.send_response(302)
            self.send_header("Location", options.redirect + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        path = (options.folder / self.path.lstrip("/")).resolve()
        if not path.is_relative_to(options.folder.resolve()) or not path.is_file():
            return self.answer(404, b'{"message":"404 Not found"}')
        return self.answer(200, path.read_bytes())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: options.cut])

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
waiting = options.port_file.with_suffix(".new")
waiting.write_text(str(server.server_port))
os.rename(waiting, options.port_file)
server.serve_forever()
