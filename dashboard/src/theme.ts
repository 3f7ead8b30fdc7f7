// Light or dark: as the system says, or as chosen here.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const PLACE = "agent-os.theme";

export const theme = signal<Theme>((localStorage.getItem(PLACE) as Theme | null) ?? "system");

effect(() => {
  if (theme.value === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem(PLACE);
  } else {
    document.documentElement.dataset.theme = theme.value;
    localStorage.setItem(PLACE, theme.value);
  }
});

/** Which of the two is seen now. */
export function seen(): "light" | "dark" {
  if (theme.value !== "system") return theme.value;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function switchTheme(): void {
  theme.value = seen() === "dark" ? "light" : "dark";
}
