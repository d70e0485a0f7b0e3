// The port is put in by visit.py.
const proxy = {
  type: "masque",
  host: "proxy.test",
  port: PROXY_PORT,
  masqueTemplate: "/.well-known/masque/udp/{target_host}/{target_port}/", // a path
};

browser.proxy.onRequest.addListener(() => proxy, { urls: ["<all_urls>"] });
