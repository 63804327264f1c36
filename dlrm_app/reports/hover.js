// Shows the text of the point nearest to the pointer.
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";
tip.hidden = true;
for (const svg of document.querySelectorAll("figure svg")) {
  const hits = [...svg.querySelectorAll(".hit")];
  let near = null;
  const leave = () => { near?.classList.remove("near"); near = null; tip.hidden = true; };
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let least = Infinity, best = null;
    for (const hit of hits) {
      // mostly along the x axis, as one reads a curve
      const distance = Math.abs(hit.cx.baseVal.value - at.x) + 0.2 * Math.abs(hit.cy.baseVal.value - at.y);
      if (distance < least) { least = distance; best = hit; }
    }
    if (best === null || least > 60) return leave();
    if (best !== near) { near?.classList.remove("near"); best.classList.add("near"); near = best; }
    tip.textContent = best.dataset.tip;
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left) + window.scrollX}px`;
    tip.style.top = `${event.clientY + 18 + window.scrollY}px`;
  });
  svg.addEventListener("pointerleave", leave);
}
