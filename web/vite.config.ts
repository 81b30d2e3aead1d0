import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

export default defineConfig({
  plugins: [svelte()],
  build: {
    target: 'es2022',
    // The page's policy allows no inlined code, and no `data:`.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
});
