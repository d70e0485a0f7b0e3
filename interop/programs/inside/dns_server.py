"""A DNS server over UDP: `dns_server.py ADDRESS PORT`. The answer for a name like 1300.test has as
many bytes as the name says."""

import sys

import dns.flags
import dns.message
import dns.rrset
from udp_server import serve

RECORD_HEAD_LEN = 13  # bytes of a TXT record before its text, with a compressed name (RFC 1035)
TEXT_LEN = 100  # bytes of text in each record but the last


def answer(payload: bytes) -> bytes:
    query = dns.message.from_wire(payload)
    name = query.question[0].name
    wanted = int(name.labels[0])
    response = dns.message.make_response(query, our_payload=1232)
    response.flags |= dns.flags.AA
    missing = wanted - len(response.to_wire())
    texts = []
    while missing > 2 * (RECORD_HEAD_LEN + TEXT_LEN):
        texts.append(f"{len(texts):0{TEXT_LEN}}")
        missing -= RECORD_HEAD_LEN + TEXT_LEN
    texts.append("x" * (missing - RECORD_HEAD_LEN))
    response.answer.append(dns.rrset.from_text_list(name, 0, "IN", "TXT", texts))
    return response.to_wire(max_size=65535)


serve(sys.argv[1], int(sys.argv[2]), answer)
