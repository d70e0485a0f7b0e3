"""A server and a client over TCP, for the namespaces: `python3 tcp.py COMMAND ADDRESS PORT ...`"""

import socket
import struct
import sys

CHUNK = bytes(65536)


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve(address: str, port: str, length: str, how: str) -> None:
    """Sends that many bytes to each client. Then the server ends the connection with FIN (close) or RST
    (reset), or the client does with FIN (client)."""
    with socket.create_server((address, int(port)), family=family(address)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        print("listening", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                for start in range(0, int(length), len(CHUNK)):
                    connection.sendall(CHUNK[: int(length) - start])
                if how == "reset":
                    connection.recv(1)  # the client has all
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                elif how == "client":
                    connection.recv(1)  # the client ends first


def fetch(address: str, port: str, length: str, how: str, times: str) -> None:
    """Fetches `length` bytes `times` times, one after another, and prints how many came."""
    total = 0
    for _ in range(int(times)):
        with socket.create_connection((address, int(port))) as connection:
            connection.sendall(b"x")
            got = 0
            while got < int(length):
                data = connection.recv(1 << 20)
                if not data:
                    break
                got += len(data)
            total += got
            if how == "reset":
                connection.sendall(b"y")
            if how != "client":
                wait_for_end(connection)
    print(total)


def wait_for_end(connection: socket.socket) -> None:
    try:
        connection.recv(1)
    except ConnectionResetError:
        pass


if __name__ == "__main__":
    _, command, *rest = sys.argv
    {"serve": serve, "fetch": fetch}[command](*rest)
