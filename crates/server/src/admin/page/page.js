"use strict";
// Replaces the numbers once a second by those that the server has drawn again.
const notice = document.getElementById("notice");
async function renew() {
  // A selection would be lost, and a page that nobody sees needs no numbers.
  if (document.hidden || String(getSelection())) return;
  try {
    const answer = await fetch("/live", { signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    const scroll = document.querySelector(".scroll")?.scrollLeft ?? 0;
    document.querySelector("main").replaceWith(next);
    const table = document.querySelector(".scroll");
    if (table) table.scrollLeft = scroll;
    notice.textContent = "";
  } catch {
    notice.textContent = "The server does not answer. These numbers are the last that it has sent.";
  }
}
(async () => {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    await renew();
  }
})();
