// What the token may do: the API refuses the rest in any case.

class Rights {
  /** `null` while it is not known. */
  mayWrite = $state<boolean | null>(null);
}

export const rights = new Rights();
