// Texts whose contrast to what is behind them is below a bound (WCAG 2.2), with their ratios.
(bound) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (colors) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    return Array.from(canvas.getImageData(0, 0, 1, 1).data.slice(0, 3));
  };
  const light = (rgb) => rgb.map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    if (element.closest("svg, .plot, .dash-slider-container") || !element.checkVisibility()) continue;
    const own = Array.from(element.childNodes).some((n) => n.nodeType === 3 && n.data.trim());
    if (!own) continue;
    const behind = [];
    for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const paper = over(behind);
    const ink = over([...behind, getComputedStyle(element).color]);
    const [low, high] = [light(paper), light(ink)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < bound) faint.push(`${element.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return faint;
}
