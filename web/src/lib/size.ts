// Sizes of elements, as the browser lays out anyway: to ask for one would have it lay out twice.

/** Tells the size of an element's content at first and at each change; use it in an effect. */
export function watchSize(element: Element | undefined, tell: (size: DOMRectReadOnly) => void) {
  if (!element) return;
  const observer = new ResizeObserver(([entry]) => {
    if (entry) tell(entry.contentRect);
  });
  observer.observe(element);
  return () => observer.disconnect();
}
