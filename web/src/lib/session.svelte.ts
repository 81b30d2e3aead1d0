// The token that the API asks for: kept for this tab alone.

const KEY = 'tradewind-token';

class Session {
  token = $state<string | null>(sessionStorage.getItem(KEY));
  /** Why the page asks for a token again. */
  problem = $state<string | null>(null);

  signIn(token: string): void {
    sessionStorage.setItem(KEY, token);
    this.token = token;
    this.problem = null;
  }

  signOut(problem: string | null = null): void {
    sessionStorage.removeItem(KEY);
    this.token = null;
    this.problem = problem;
  }
}

export const session = new Session();

/** Takes the token of `#token=...` over, and out of the address and the history at once. */
export function takeToken(): void {
  const take = () => {
    const token = new URLSearchParams(location.hash.slice(1)).get('token');
    if (token === null) return;
    history.replaceState(null, '', location.pathname);
    session.signIn(token);
    dispatchEvent(new HashChangeEvent('hashchange'));
  };
  take();
  // As when the link is pasted into a tab that shows the page.
  addEventListener('hashchange', take);
}
