"""Listens on a link: overheard.py INTERFACE WORDS PORT.

At SIGTERM it prints how many bytes of TCP went from or to the port, and how many packets held the
words.
"""

import signal
import socket
import struct
import sys

interface, words, port = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])
total = clear = 0
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)) as link:
        link.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        link.bind((interface, 0))
        while True:
            packet = link.recv(1 << 17)
            if packet[0] >> 4 != 4 or packet[9] != 6:
                continue
            start = (packet[0] & 15) * 4
            if port in struct.unpack(">HH", packet[start : start + 4]):
                total += len(packet)
            clear += words in packet
except KeyboardInterrupt:
    print(f"{total} bytes, {clear} times in clear")
