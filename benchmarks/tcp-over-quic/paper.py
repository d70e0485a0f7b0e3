"""The numbers of the paper "Implementation and Performance Evaluation of TCP over QUIC Tunnels",
Tables 1 to 4: Mbit/s at the sender and at the receiver, with iperf3 for 10 s, means of 5 runs.

The paper does not say whether its delay is that of one direction, and how late its reordered packets
are. Its bandwidths are in MB/s.
"""

# setting: (tunnel sender, tunnel receiver, TCP sender, TCP receiver)
TABLES = {
    "q1": {  # Mbit/s of the link
        8: (11.8, 6.18, 11.1, 7.75),
        80: (76.0, 70.1, 76.5, 73.2),
        800: (132, 126, 824, 820),
    },
    "q2": {  # % of loss
        0: (72.7, 68.0, 84.9, 81.5),
        5: (58.3, 53.1, 47.5, 46.6),
        10: (32.2, 26.9, 19.5, 19.1),
        15: (18.1, 13.2, 5.14, 4.93),
        20: (11.1, 5.97, 2.41, 2.18),
    },
    "q3": {  # ms
        0: (77.6, 70.3, 66.1, 53.3),
        50: (59.7, 54.7, 61.8, 56.1),
        100: (59.4, 53.8, 50.7, 37.8),
        200: (37.0, 31.5, 43.2, 37.2),
        500: (15.5, 9.97, 4.72, 3.23),
        1000: (6.60, 2.76, 0.73, 0.61),
    },
    "q4": {  # % of packets out of order
        0: (74.8, 69.9, 44.0, 40.6),
        5: (76.4, 71.5, 44.9, 40.8),
        10: (77.9, 70.1, 44.1, 40.8),
        15: (80.1, 75.1, 52.2, 48.8),
        20: (76.2, 69.3, 52.3, 48.9),
    },
}


def receiver(table):
    """Setting, and what the receiver got: of the paper's tunnel and of its plain TCP."""
    rows = TABLES[table].items()
    return {x: row[1] for x, row in rows}, {x: row[3] for x, row in rows}
