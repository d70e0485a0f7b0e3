"""Envoy as a client of a proxy, and as a proxy for TCP."""

import json

from files import CA, CERT, KEY
from processes import Lab, free_port
from servers import LARGE_START, Server, packaged

API = "type.googleapis.com/envoy.extensions"
HTTP3 = {"allow_extended_connect": True}


def typed(name: str, kind: str, **settings) -> dict:
    """A part of a configuration that has a type."""
    return {"name": name, "typed_config": {"@type": f"{API}.{kind}", **settings}}


def address(port: int, protocol: str = "TCP") -> dict:
    where = {"address": "127.0.0.1", "port_value": port, "protocol": protocol}
    return {"address": {"socket_address": where}}


def start(lab: Lab, listeners: list[dict], cluster: dict, port: int) -> Server:
    config = lab.logs / "envoy.json"
    resources = {"listeners": listeners, "clusters": [cluster]}
    config.write_text(json.dumps({"static_resources": resources}))
    program = packaged("envoy", "_bin", "envoy")
    options = ("--use-dynamic-base-id", "--concurrency", "1")
    process = lab.start("envoy", program, "-c", config, *options)
    process.wait_for("all dependencies initialized. starting workers", LARGE_START)
    return Server(process, port)


def client(
    lab: Lab, proxy: Server, tcp: Server, udp: Server, ports: tuple[int, int], token: str
) -> Server:
    """Starts an Envoy with a TCP port and a UDP port, each for one target behind the proxy."""
    bearer = {"key": "authorization", "value": f"Bearer {token}"}
    fields = [{"header": bearer, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]
    tcp_proxy = typed(
        "envoy.filters.network.tcp_proxy",
        "filters.network.tcp_proxy.v3.TcpProxy",
        stat_prefix="tcp",
        cluster="tandem",
        tunneling_config={"hostname": tcp.address, "headers_to_add": fields},
    )
    of_udp = "filters.udp.udp_proxy"
    udp_proxy = typed(
        "envoy.filters.udp_listener.udp_proxy",
        f"{of_udp}.v3.UdpProxyConfig",
        stat_prefix="udp",
        matcher={"on_no_match": {"action": typed("route", f"{of_udp}.v3.Route", cluster="tandem")}},
        # Without it, Envoy writes payloads that are not framed.
        session_filters=[
            typed("envoy.filters.udp.session.http_capsule", f"{of_udp}.session.http_capsule.v3.FilterConfig")
        ],
        tunneling_config={
            "proxy_host": "127.0.0.1",
            "proxy_port": proxy.port,
            "target_host": "127.0.0.1",
            "default_target_port": udp.port,
            "headers_to_add": fields,
            "retry_options": {"max_connect_attempts": 2},
            "buffer_options": {"max_buffered_datagrams": 64, "max_buffered_bytes": 65536},
        },
    )
    http = typed("", "upstreams.http.v3.HttpProtocolOptions", explicit_http_config={"http3_protocol_options": HTTP3})
    trusted = {"validation_context": {"trusted_ca": {"filename": str(CA)}}}
    cluster = {
        "name": "tandem",
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": "tandem",
            "endpoints": [{"lb_endpoints": [{"endpoint": address(proxy.port)}]}],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http["typed_config"]
        },
        "transport_socket": typed(
            "envoy.transport_sockets.quic",
            "transport_sockets.quic.v3.QuicUpstreamTransport",
            upstream_tls_context={"sni": "localhost", "common_tls_context": trusted},
        ),
    }
    listeners = [
        {"name": "tcp", **address(ports[0]), "filter_chains": [{"filters": [tcp_proxy]}]},
        {"name": "udp", **address(ports[1], "UDP"), "listener_filters": [udp_proxy]},
    ]
    return start(lab, listeners, cluster, ports[0])


def tcp_proxy(lab: Lab) -> Server:
    """Starts an Envoy that is a proxy for TCP: CONNECT over HTTP/3, without connect-tcp."""
    port = free_port()
    names = {"dns_cache_config": {"name": "names", "dns_lookup_family": "V4_ONLY"}}
    forward = "dynamic_forward_proxy"
    route = {
        "match": {"connect_matcher": {}},
        "route": {"cluster": forward, "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}]},
    }
    http = typed(
        "envoy.filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        codec_type="HTTP3",
        stat_prefix="proxy",
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        http_filters=[
            typed(f"envoy.filters.http.{forward}", f"filters.http.{forward}.v3.FilterConfig", **names),
            typed("envoy.filters.http.router", "filters.http.router.v3.Router"),
        ],
        http3_protocol_options=HTTP3,
        upgrade_configs=[{"upgrade_type": "CONNECT"}],
    )
    identity = {"certificate_chain": {"filename": str(CERT)}, "private_key": {"filename": str(KEY)}}
    tls = typed(
        "envoy.transport_sockets.quic",
        "transport_sockets.quic.v3.QuicDownstreamTransport",
        downstream_tls_context={"common_tls_context": {"tls_certificates": [identity]}},
    )
    listener = {
        "name": "proxy",
        **address(port, "UDP"),
        # Without it, Envoy drops packets that the kernel hands over in one piece, as on loopback.
        "udp_listener_config": {"quic_options": {}, "downstream_socket_config": {"prefer_gro": True}},
        "filter_chains": [{"transport_socket": tls, "filters": [http]}],
    }
    kind = typed(f"envoy.clusters.{forward}", f"clusters.{forward}.v3.ClusterConfig", **names)
    cluster = {"name": forward, "lb_policy": "CLUSTER_PROVIDED", "cluster_type": kind}
    return start(lab, [listener], cluster, port)
