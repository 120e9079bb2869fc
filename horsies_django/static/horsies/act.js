// Goes on with an act that is not over, unless somebody stops it; without this script, its button does.
const form = document.querySelector("form[data-continues]");
if (form) {
  const timer = setTimeout(() => form.requestSubmit(form.elements.go), 200);
  form.querySelector("[data-stop]").addEventListener("click", () => clearTimeout(timer));
}
