// Makes the picture of a run smaller and larger; live.js refreshes it.
"use strict";

(() => {
  const picture = document.getElementById("horsies-picture");
  const canvas = picture.querySelector(".horsies-canvas");
  const drawing = picture.querySelector(".horsies-drawing");
  if (!drawing) return;
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
  const bar = picture.querySelector(".horsies-zoom");
  bar.hidden = false;
  bar.addEventListener("click", (event) => {
    const wanted = event.target.dataset.zoom;
    if (wanted) resize(zooms[wanted]());
  });
  picture.addEventListener("horsies:shown", () => resize(scale));
  if (width() >= LEGIBLE) resize(width());
  const first = drawing.querySelector(".horsies-box").getBoundingClientRect();
  const here = canvas.getBoundingClientRect();
  canvas.scrollLeft += first.left + first.width / 2 - here.left - here.width / 2;
})();
