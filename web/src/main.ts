import { mount } from 'svelte';

import './app.css';
import App from './App.svelte';
import { takeToken } from './lib/session.svelte';

takeToken();
const target = document.getElementById('app');
if (target) mount(App, { target });
