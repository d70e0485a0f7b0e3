"""The traffic of the benchmark, as a program: one end sends, the other counts.

    flow.py serve ADDRESS FOLDER             the service, which writes what it received into FOLDER
    flow.py up ADDRESS SECONDS NAME CC STREAMS
    flow.py down ADDRESS SECONDS NAME CC STREAMS FOLDER
    flow.py connect ADDRESS COUNT            time of connect + 1 byte + its echo, one after another
    flow.py rtt ADDRESS COUNT                time of 1 byte and its echo on one connection
    flow.py hold ADDRESS COUNT               holds connections, until its standard input ends

The receiver counts the bytes of each 100 ms from the moment at which the request is sent (down) or
arrives (up). There is no second connection for control, unlike with iperf3: over a bad link its
exchanges would need seconds of their own.
"""

import json
import pathlib
import socket
import sys
import threading
import time

BIN = 0.1  # seconds
BLOCK = 1 << 18
LIMIT = 300  # seconds that a flow can take at most


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def count(connection, seconds):
    """Bytes that arrive in each 100 ms."""
    start, bins = time.monotonic(), [0] * round(seconds / BIN)
    room = bytearray(BLOCK)
    while (left := start + seconds - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            got = connection.recv_into(room)
        except TimeoutError:
            break
        if not got:
            break
        if (index := int((time.monotonic() - start) / BIN)) < len(bins):
            bins[index] += got
    return bins


def send(connection, seconds):
    """Sends until the other end has gone."""
    connection.settimeout(min(seconds + 60, LIMIT))
    block, end = bytes(BLOCK), time.monotonic() + seconds + 60
    try:
        while time.monotonic() < end:
            connection.sendall(block)
    except OSError:
        pass


def write(folder, name, bins):
    file = pathlib.Path(folder) / name
    file.with_suffix(".part").write_text(json.dumps(bins))
    file.with_suffix(".part").rename(file.with_suffix(".json"))


def line(connection):
    text = b""
    while not text.endswith(b"\n") and len(text) < 100:
        byte = connection.recv(1)
        if not byte:
            break
        text += byte
    return text.decode()


def answer(connection, folder):
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        match line(connection).split():
            case ["up", seconds, name]:
                write(folder, name, count(connection, float(seconds)))
            case ["down", seconds, controller]:
                name_controller(connection, controller)
                send(connection, float(seconds))
            case ["echo"]:
                while byte := connection.recv(1):
                    connection.sendall(byte)


def serve(listen, folder):
    with socket.create_server(address(listen), backlog=4096) as server:
        print("listening", file=sys.stderr, flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=quiet, args=(answer, connection, folder), daemon=True).start()


def quiet(function, *arguments):
    """Connections break when a run is over, which is no error here."""
    try:
        function(*arguments)
    except OSError:
        pass


def name_controller(connection, controller):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, controller.encode())


def dial(to, controller="cubic"):
    connection = socket.create_connection(address(to), timeout=60)
    name_controller(connection, controller)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def in_parallel(streams, function):
    threads = [threading.Thread(target=quiet, args=(function, n)) for n in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def up(to, seconds, name, controller, streams):
    def one(number):
        connection = dial(to, controller)
        connection.sendall(f"up {seconds} {name}-{number}\n".encode())
        send(connection, float(seconds))

    in_parallel(int(streams), one)


def down(to, seconds, name, controller, streams, folder):
    def one(number):
        connection = dial(to)
        connection.sendall(f"down {seconds} {controller}\n".encode())
        write(folder, f"{name}-{number}", count(connection, float(seconds)))

    in_parallel(int(streams), one)


def echo(connection):
    connection.sendall(b"x")
    if connection.recv(1) != b"x":
        raise SystemExit("the echo did not come back")


def connect(to, number):
    times = []
    for _ in range(int(number)):
        start = time.monotonic()
        with dial(to) as connection:
            connection.sendall(b"echo\nx")
            if connection.recv(1) != b"x":
                raise SystemExit("the echo did not come back")
            times.append(time.monotonic() - start)
    print(json.dumps(times))


def rtt(to, number):
    times = []
    with dial(to) as connection:
        connection.sendall(b"echo\n")
        for _ in range(int(number)):
            start = time.monotonic()
            echo(connection)
            times.append(time.monotonic() - start)
    print(json.dumps(times))


def hold(to, number):
    """Each connection is proved to be open by one byte and its echo."""
    connections = []
    for _ in range(int(number)):
        connections.append(dial(to))
        connections[-1].sendall(b"echo\n")
        echo(connections[-1])
    print(len(connections), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    COMMANDS = {f.__name__: f for f in (serve, up, down, connect, rtt, hold)}
    COMMANDS[sys.argv[1]](*sys.argv[2:])
