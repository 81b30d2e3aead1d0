"""A web server and a name server: site.py FOLDER ADDRESS.

Every name has that address. FOLDER.log has the addresses of the web server's clients.
"""

import functools
import http.server
import socket
import struct
import sys
import threading

folder, address = sys.argv[1:]


class Site(http.server.SimpleHTTPRequestHandler):
    def log_message(self, form, *words):
        with open(folder + ".log", "a") as log:
            log.write(f"{self.client_address[0]} {form % words}\n")


def names():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind((address, 53))
        while True:
            query, client = port.recvfrom(512)
            # The question is a name, which ends with an empty label, then type and class.
            end = query.index(b"\0", 12) + 5
            is_ipv4 = query[end - 4 : end - 2] == b"\0\1"
            head = query[:2] + struct.pack(">HHHHH", 0x8180, 1, int(is_ipv4), 0, 0)
            answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(address)
            port.sendto(head + query[12:end] + (answer if is_ipv4 else b""), client)


threading.Thread(target=names, daemon=True).start()
handler = functools.partial(Site, directory=folder)
http.server.ThreadingHTTPServer((address, 80), handler).serve_forever()
