// Refreshes the picture of an unfinished run, and makes it smaller and larger. Without this script, the page is reloaded by hand.
"use strict";

(() => {
  const picture = document.getElementById("horsies-picture");
  const canvas = picture.querySelector(".horsies-canvas");
  const drawing = picture.querySelector(".horsies-drawing");
  const PAUSE = 2000; // ms between two requests; more where the server needs long, or cannot be reached
  const SMALLEST = 0.05;
  const LARGEST = 3;
  const FAR = 0.35; // below, texts cannot be read, and the boxes are filled instead
  const LEGIBLE = 0.8; // a picture that fits at this size is shown so at first
  let scale = 1;

  const resize = (wanted) => {
    const before = scale;
    scale = Math.min(Math.max(wanted, SMALLEST), LARGEST);
    const box = drawing.viewBox.baseVal;
    const middle = [canvas.scrollLeft + canvas.clientWidth / 2, canvas.scrollTop + canvas.clientHeight / 2];
    drawing.setAttribute("width", box.width * scale);
    drawing.setAttribute("height", box.height * scale);
    drawing.classList.toggle("horsies-far", scale < FAR);
    canvas.scrollLeft = middle[0] * scale / before - canvas.clientWidth / 2;
    canvas.scrollTop = middle[1] * scale / before - canvas.clientHeight / 2;
  };

  const width = () => Math.min(1, canvas.clientWidth / drawing.viewBox.baseVal.width);

  const all = () => {
    const height = parseFloat(getComputedStyle(canvas).maxHeight) || canvas.clientHeight;
    return Math.min(width(), height / drawing.viewBox.baseVal.height);
  };

  const zooms = { in: () => scale * 1.25, out: () => scale / 1.25, width, all, full: () => 1 };

  // Replace what differs, and nothing else: so the focus, the places of scroll bars and a click that has begun are kept.
  const adopt = (mine, theirs) => {
    if (mine === drawing) drawing.setAttribute("viewBox", theirs.getAttribute("viewBox"));
    const fresh = [...theirs.childNodes];
    if (fresh.length !== mine.childNodes.length) {
      mine.replaceChildren(...fresh);
      return;
    }
    fresh.forEach((child, place) => {
      const old = mine.childNodes[place];
      if (!old.isEqualNode(child)) old.replaceWith(child);
    });
  };

  const show = (text) => {
    const found = new DOMParser().parseFromString(text, "text/html");
    if (!found.querySelector("[data-part]")) throw new Error("not a picture"); // but the page of a login, for example
    const held = document.activeElement && document.activeElement.id;
    for (const theirs of found.querySelectorAll("[data-part]")) {
      const mine = picture.querySelector(`[data-part="${theirs.dataset.part}"]`);
      if (mine) adopt(mine, theirs);
    }
    if (drawing) resize(scale);
    if (held && document.activeElement.id !== held) {
      const again = document.getElementById(held);
      if (again) again.focus({ preventScroll: true });
    }
    return found.querySelector("[data-live]") !== null;
  };

  let timer = null;
  let live = picture.querySelector("[data-live]") !== null;
  let pause = PAUSE;
  let busy = false;

  const refresh = async () => {
    if (busy) return;
    busy = true;
    const began = performance.now();
    const note = picture.querySelector('[data-part="note"]');
    try {
      const response = await fetch("?live", { credentials: "same-origin" });
      if (!response.ok || response.redirected) throw new Error(response.status);
      live = show(await response.text());
      pause = Math.max(PAUSE, 10 * (performance.now() - began));
    } catch {
      pause = Math.min(pause * 2, 60000);
      if (note) note.textContent = picture.dataset.lost;
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

  if (drawing) {
    const bar = picture.querySelector(".horsies-zoom");
    bar.hidden = false;
    bar.addEventListener("click", (event) => {
      const wanted = event.target.dataset.zoom;
      if (wanted) resize(zooms[wanted]());
    });
    if (width() >= LEGIBLE) resize(width());
    const first = drawing.querySelector(".horsies-box").getBoundingClientRect();
    const here = canvas.getBoundingClientRect();
    canvas.scrollLeft += first.left + first.width / 2 - here.left - here.width / 2;
  }
})();
