// Fetches the parts of a page anew while it is visible. Without this script, the page is reloaded by hand.
"use strict";

(() => {
  const page = document.querySelector("[data-lost]");
  let live = page.querySelector("[data-live]") !== null;
  if (!live) return;
  const PAUSE = Number(page.querySelector("[data-live]").dataset.live); // ms; more where the server needs long, or cannot be reached
  const LONGEST = 60000;

  // Replace what differs, and nothing else: so the focus, the places of scroll bars and a click that has begun are kept.
  const adopt = (mine, theirs) => {
    const fresh = [...theirs.childNodes];
    if (fresh.length !== mine.childNodes.length) {
      mine.replaceChildren(...fresh);
      return;
    }
    fresh.forEach((child, place) => {
      const old = mine.childNodes[place];
      if (old.isEqualNode(child)) return;
      if (child.firstChild && old.cloneNode(false).isEqualNode(child.cloneNode(false))) adopt(old, child);
      else old.replaceWith(child);
    });
  };

  const show = (text) => {
    const found = new DOMParser().parseFromString(text, "text/html");
    if (!found.querySelector("[data-part]")) throw new Error("another page"); // that of a login, for example
    const held = document.activeElement && document.activeElement.id;
    for (const theirs of found.querySelectorAll("[data-part]")) {
      const mine = page.querySelector(`[data-part="${theirs.dataset.part}"]`);
      if (!mine) continue;
      if (theirs.hasAttribute("viewBox")) mine.setAttribute("viewBox", theirs.getAttribute("viewBox"));
      adopt(mine, theirs);
    }
    page.dispatchEvent(new Event("horsies:shown"));
    const again = held && document.activeElement.id !== held && document.getElementById(held);
    if (again) again.focus({ preventScroll: true });
    return found.querySelector("[data-live]") !== null;
  };

  let timer = null;
  let pause = PAUSE;
  let busy = false;

  const refresh = async () => {
    if (busy) return;
    busy = true;
    const began = performance.now();
    const note = page.querySelector('[data-part="note"]');
    try {
      const response = await fetch(page.dataset.from || location.href, { credentials: "same-origin" });
      if (!response.ok || response.redirected) throw new Error(response.status);
      live = show(await response.text());
      pause = Math.max(PAUSE, 10 * (performance.now() - began));
    } catch {
      pause = Math.min(pause * 2, LONGEST);
      if (note) note.textContent = page.dataset.lost;
    }
    busy = false;
    if (!live && note) note.remove();
    plan(pause);
  };

  const plan = (after) => {
    clearTimeout(timer);
    timer = live && !document.hidden ? setTimeout(refresh, after) : null;
  };

  document.addEventListener("visibilitychange", () => plan(0));
  plan(PAUSE);
})();
