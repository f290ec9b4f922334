// The player of a sound: its waveform, where a click seeks, and the browser's own controls.

import { make } from "./items.js";

const MAX_STEP_SECONDS = 2; // of an arrow key; a tenth of a shorter sound
const AUTOPLAY = "labelahead-autoplay";
let current = null; // { url, box, audio }: a redraw of the same item must not stop the sound

const plays = () => { try { return localStorage.getItem(AUTOPLAY) === "1"; } catch { return false; } };
const remember = (yes) => { try { localStorage.setItem(AUTOPLAY, yes ? "1" : "0"); } catch { /* storage is forbidden: the setting lasts for this sound */ } };
const start = (audio) => audio.play().catch(() => null); // browsers refuse until the first click or key
const length = (audio) => (Number.isFinite(audio.duration) ? audio.duration : 0);

export function player(found) {
  if (current?.url === found.sound) return current.box;
  const audio = make("audio", { controls: true, preload: "auto", src: found.sound, "aria-label": "The sound to label" });
  const head = make("span", { className: "head" });
  const wave = make("div", { className: "wave" }, make("img", { src: found.url, alt: "Waveform of the sound", draggable: false }), head);
  const place = () => { head.style.left = `${length(audio) ? (100 * audio.currentTime) / audio.duration : 0}%`; };
  const follow = () => { place(); if (!audio.paused) requestAnimationFrame(follow); };
  audio.addEventListener("play", follow);
  audio.addEventListener("timeupdate", place);
  const seek = (event) => {
    const box = wave.getBoundingClientRect();
    audio.currentTime = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * length(audio);
  };
  wave.addEventListener("pointerdown", (event) => { wave.setPointerCapture(event.pointerId); seek(event); });
  wave.addEventListener("pointermove", (event) => { if (event.buttons & 1) seek(event); });
  const auto = make("input", { type: "checkbox", id: "autoplay", checked: plays(), on: { change: () => remember(auto.checked) } });
  const keys = make("span", { className: "faint keys" }, make("kbd", { text: "Space" }), " play or pause ",
    make("kbd", { text: "←" }), " ", make("kbd", { text: "→" }), " seek");
  const box = make("div", { className: "player" }, wave, audio,
    make("p", { className: "row" }, make("label", { className: "check" }, auto, " Play automatically"), keys));
  audio.addEventListener("error", () => box.replaceChildren(make("p", { className: "lost", text: "This sound could not be loaded." })));
  current = { url: found.sound, box, audio };
  if (auto.checked) start(audio);
  return box;
}

export function togglePlay() {
  if (!current) return;
  if (current.audio.paused) start(current.audio); else current.audio.pause();
}

export function seekBy(direction) { // -1: back, 1: forward
  if (!current) return;
  const { audio } = current;
  const step = Math.min(MAX_STEP_SECONDS, length(audio) / 10);
  audio.currentTime = Math.max(0, Math.min(length(audio), audio.currentTime + direction * step));
}
