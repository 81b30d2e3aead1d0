// The page shown, by the part of the address behind `#`: `#/flows/nightly`.

class Route {
  /** The names of the path, decoded. */
  parts = $state<string[]>(partsOf(location.hash));

  constructor() {
    addEventListener('hashchange', () => (this.parts = partsOf(location.hash)));
  }
}

export function partsOf(hash: string): string[] {
  const parts = hash.replace(/^#\/?/, '').split('/').filter(Boolean);
  return parts.map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
}

/** Returns the link to a page. */
export function link(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join('/')}`;
}

export const route = new Route();
