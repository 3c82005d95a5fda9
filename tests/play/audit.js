// Faults of a page that a reader would meet: text of low contrast, labels over one another, images without words.
(() => {
  const parse = (colour) => (colour.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number).concat(1).slice(0, 4);
  const over = (top, below) => [0, 1, 2].map((k) => top[k] * top[3] + below[k] * (1 - top[3])).concat(1);
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const family = (element) => (element ? [element, ...family(element.parentElement)] : []);
  const ground = (element) => family(element).map((one) => parse(getComputedStyle(one).backgroundColor)).reduceRight((below, top) => over(top, below), [255, 255, 255, 1]);
  const contrast = (element) => {
    const style = getComputedStyle(element), below = ground(element), colour = parse(element.closest("svg") ? style.fill : style.color);
    colour[3] *= family(element).reduce((share, one) => share * Number(getComputedStyle(one).opacity), 1);
    const [dark, bright] = [light(over(colour, below)), light(below)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const faults = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim();
    if (!words || element.closest("style, script, title, option, [disabled]") || !element.checkVisibility()) continue;
    texts += 1;
    if (contrast(element) < 4.5) faults.add(`contrast ${contrast(element).toFixed(2)}: ${words}`);
  }
  for (const drawing of document.querySelectorAll("svg")) {
    const places = [...drawing.querySelectorAll("text")].filter((one) => one.textContent).map((one) => [one.textContent, one.getBoundingClientRect()]);
    places.forEach(([words, a], k) => places.slice(0, k).forEach(([other, b]) => {
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) faults.add(`${other} over ${words}`);
    }));
  }
  const named = (one) => one.alt || one.getAttribute("aria-label") || one.closest("[aria-hidden=true]");
  document.querySelectorAll("img, canvas, video, svg").forEach((one) => named(one) || faults.add(`no words: ${one.outerHTML.slice(0, 80)}`));
  return JSON.stringify({ texts, faults: [...faults] });
})()
