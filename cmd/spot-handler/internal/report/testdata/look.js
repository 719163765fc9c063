// What a reader would see of the page: see browser_test.go.
(() => {
  const seen = {
    Dark: matchMedia('(prefers-color-scheme: dark)').matches, Requests: performance.getEntriesByType('resource').length,
    Alerts: document.querySelectorAll('script, img').length - 1, Wide: false, Overflows: [], Faint: [], Looked: 0,
  };
  document.querySelectorAll('details').forEach(d => { d.open = true; });
  seen.Wide = document.documentElement.scrollWidth > innerWidth;

  const name = e => `<${e.tagName} class="${e.getAttribute('class') || ''}"> ${e.textContent.trim().slice(0, 60)}`;
  const numbers = colour => colour.match(/[\d.]+/g).map(Number);
  const luminance = colour => {
    const [r, g, b] = numbers(colour).slice(0, 3).map(c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = e => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const apart = list => {
    for (let i = 1; i < list.length; i++) {
      const a = list[i - 1].getBoundingClientRect(), b = list[i].getBoundingClientRect();
      if (a.right > b.left && b.right > a.left && a.bottom > b.top && b.bottom > a.top) {
        seen.Overflows.push(`lie over each other: ${name(list[i - 1])} and ${name(list[i])}`);
      }
    }
  };

  for (const e of document.body.querySelectorAll('*')) {
    const own = [...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.textContent.trim());
    const box = e.getBoundingClientRect();
    if (!own || !box.width || e.closest('.unseen') || ['title', 'desc', 'SCRIPT'].includes(e.tagName)) continue;
    seen.Looked++;
    const style = getComputedStyle(e);
    const ratio = contrast(e.closest('svg') ? style.fill : style.color, ground(e));
    if (ratio < 4.5) seen.Faint.push(`contrast ${ratio.toFixed(2)}: ${name(e)}`);
    if (e.closest('svg')) {
      const whole = e.closest('svg').getBoundingClientRect();
      if (box.left < whole.left - 1 || box.right > whole.right + 1 || box.bottom > whole.bottom + 1) seen.Overflows.push(`sticks out of its chart: ${name(e)}`);
    } else if (e.scrollWidth > e.clientWidth + 1 && style.display !== 'inline' && style.textOverflow !== 'ellipsis') {
      seen.Overflows.push(`is wider than its place: ${name(e)}`);
    } else if (e.scrollWidth > e.clientWidth + 1 && style.textOverflow === 'ellipsis' && !e.title && !e.querySelector('[title]')) {
      seen.Overflows.push(`is cut: ${name(e)}`);
    }
  }
  document.querySelectorAll('.axis').forEach(a => apart([...a.children]));

  const meta = document.createElement('meta');
  meta.name = 'seen';
  meta.content = btoa(unescape(encodeURIComponent(JSON.stringify(seen))));
  document.head.append(meta);
})();
