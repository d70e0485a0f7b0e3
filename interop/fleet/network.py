"""A client, a load balancer, three machines behind it and an origin. The balancer keeps no state: it writes the address of a
machine into each packet, and that of the service into each answer."""

from namespaces import Hosts, connect, shape

SERVICE = "10.66.0.1"  # the address that clients know
PORT = 443
MACHINES = (1, 2, 3)  # the server IDs
CLIENT, MOVED_CLIENT = "10.66.9.2", "10.66.9.3"
ORIGIN = "10.66.8.2"
RATE = "60mbit"  # of the client's access link


def address(machine: int) -> str:
    return f"10.66.{machine}.2"


class Network(Hosts):
    def __init__(self):
        super().__init__("client", "balancer", "origin", *(f"machine{'abc'[machine - 1]}" for machine in MACHINES))
        self.client, self.balancer, self.origin, *machines = self.all
        self.machines = dict(zip(MACHINES, machines))

    def make(self) -> None:
        for host, net in ((self.client, 9), (self.origin, 8), *((h, m) for m, h in self.machines.items())):
            connect(self.balancer, f"10.66.{net}.1", host, f"10.66.{net}.2")
            host.ip("route", "add", "default", "via", f"10.66.{net}.1")
        self.client.ip("address", "add", f"{MOVED_CLIENT}/24", "dev", "to-balancer")
        self.balancer.ip("address", "add", f"{SERVICE}/32", "dev", "lo")
        self.balancer.set("net.ipv4.ip_forward", 1)
        shape(self.balancer, "to-client", RATE, "latency", "50ms")

    def balance(self, known: tuple[int, ...], new: tuple[int, ...]) -> None:
        """Routes packets with the server IDs `known` to their machines, and all others, such as those of new connections, to
        one of the machines `new`."""
        by_id = ", ".join(f"0x{machine:04x} : {address(machine)}" for machine in known)
        by_hash = ", ".join(f"{index} : {address(machine)}" for index, machine in enumerate(new))
        addresses = ", ".join(map(address, MACHINES))
        to_service = f"ip daddr {SERVICE} udp dport {PORT}"
        # A UDP header has 64 bits. Behind it are the first byte of QUIC, whose first bit is set in a long header, the first
        # byte of the connection ID, and the server ID.
        rules = f"""
            table ip balancer
            delete table ip balancer
            table ip balancer {{
                map by_id {{ typeof @th,80,16 : ip daddr; elements = {{ {by_id} }} }}
                chain in {{
                    type filter hook prerouting priority raw
                    {to_service} @th,64,1 0 ip daddr set @th,80,16 map @by_id accept
                    {to_service} ip daddr set jhash ip saddr . udp sport mod {len(new)} map {{ {by_hash} }}
                }}
                chain out {{
                    type filter hook postrouting priority 300
                    ip saddr {{ {addresses} }} udp sport {PORT} ip saddr set {SERVICE}
                }}
            }}"""
        self.balancer.rules(rules)

    def move_client(self) -> None:
        """Gives the client's packets another address on their way, as a NAT does when its own address changes."""
        rules = f"""
            table ip mover {{
                chain out {{
                    type filter hook output priority raw
                    ip daddr {SERVICE} ip saddr set {MOVED_CLIENT}
                }}
                chain in {{
                    type filter hook prerouting priority raw
                    ip saddr {SERVICE} ip daddr {MOVED_CLIENT} ip daddr set {CLIENT}
                }}
            }}"""
        self.client.rules(rules)
