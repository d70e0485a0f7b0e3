const isBelow = (host, domain) => host === domain || host.endsWith("." + domain);
const direct = { type: "direct" };

browser.proxy.onRequest.addListener(
  request => {
    const host = new URL(request.url).hostname;
    if (excluded.some(domain => isBelow(host, domain))) {
      return direct;
    }
    return domains.length === 0 || domains.some(domain => isBelow(host, domain)) ? proxy : direct;
  },
  { urls: ["<all_urls>"] },
);
