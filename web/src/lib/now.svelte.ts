// The time, for what is so long ago.

class Now {
  ms = $state(Date.now());

  constructor() {
    setInterval(() => (this.ms = Date.now()), 5000);
  }
}

export const now = new Now();
