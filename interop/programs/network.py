"""Three hosts in a row: home, proxy and far. The links between them have an MTU of 1500 bytes, and the one at home has a
rate, as an Internet access has."""

from namespaces import Hosts, connect, shape

RATE = 50_000_000  # bit/s of the link between home and proxy
PROXY_ADDRESS, FAR_ADDRESS = "10.79.1.2", "10.79.2.2"


class Network(Hosts):
    """The hosts can reach their neighbours only, so that whatever passes between home and far went through the proxy."""

    def __init__(self):
        super().__init__("home", "proxy", "far")
        self.home, self.proxy, self.far = self.all

    def make(self) -> None:
        connect(self.home, "10.79.1.1", self.proxy, PROXY_ADDRESS)
        connect(self.proxy, "10.79.2.1", self.far, FAR_ADDRESS)
        for host, device in ((self.home, "to-proxy"), (self.proxy, "to-home")):
            shape(host, device, f"{RATE}bit", "latency", "50ms")
