// Shows which file a piece belongs to, and all pieces of that file.
const tip = document.getElementById("tip");
const titles = new Map();
for (const path of document.querySelectorAll(".blocks path")) {
  const title = path.querySelector("title");
  titles.set(path, title.textContent);
  title.remove();
}
function light(id) {
  for (const old of document.querySelectorAll(".on")) old.classList.remove("on");
  for (const svg of document.querySelectorAll("svg.dim")) svg.classList.remove("dim");
  if (!id) return;
  for (const piece of document.querySelectorAll(`[data-f="${id}"]`)) {
    piece.classList.add("on");
    piece.closest("section").querySelector("svg.blocks").classList.add("dim");
  }
}
document.addEventListener("mousemove", (event) => {
  const piece = event.target.closest("[data-f]");
  light(piece && piece.dataset.f);
  const text = titles.get(piece);
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 10) + "px";
  tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 10) + "px";
});
