/** Interface icons: 16 px, one stroke weight. Decorative; the control beside them carries the name. */
const paths = {
  overview: "M2.5 13.5v-5m3.7 5v-11m3.6 11V6m3.7 7.5V4",
  fleet: "M2.5 2.5h4v4h-4zm7 0h4v4h-4zm-7 7h4v4h-4zm7 0h4v4h-4z",
  jobs: "M2 8h3l2-5 3 10 2-5h2",
  incidents: "M8 2.2 14.5 13.5h-13zM8 6.5v3m0 1.8v.1",
  validation: "M8 1.8 13.5 4v4c0 3.2-2.3 5.4-5.5 6.3C4.8 13.4 2.5 11.2 2.5 8V4zM5.6 8l1.8 1.8 3.2-3.6",
  remediation:
    "M13.6 4.3a3.6 3.6 0 0 1-4.8 4.5l-4.6 4.6a1.3 1.3 0 0 1-1.9-1.9l4.7-4.6a3.6 3.6 0 0 1 4.5-4.6L9.4 4.5l.3 1.8 1.8.3z",
  policy: "M2.5 4h6m3 0h2m-11 4h2m3 0h6m-11 4h5m3 0h3M8.5 2.5v3m-4 1v3m4.5 1v3",
  simulation: "M2.5 2.5v11h11M5 10.5c2.5 0 3-6 8-6.5M5 10.5c3 .3 5-1.5 8-2",
  gpu: "M4.5 4.5h7v7h-7zM6.5 1.8v2m3-2v2m-3 8.4v2m3-2v2M1.8 6.5h2m-2 3h2m8.4-3h2m-2 3h2",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zm3.6-1.4L14 14",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.2 1.2M11.8 11.8 13 13M3 13l1.2-1.2M11.8 4.2 13 3",
  moon: "M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1z",
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  check: "m3 8.5 3.2 3.2L13 4.6",
  down: "m4 6 4 4 4-4",
  right: "m6 4 4 4-4 4",
  play: "M4.5 3v10l8-5z",
  close: "m4 4 8 8m0-8-8 8",
  help: "M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM6.2 6.3a1.9 1.9 0 1 1 2.8 1.6c-.7.4-1 .7-1 1.4m0 2v.1",
  key: "M10.5 8.5a3 3 0 1 0-2.8-2L2.5 11.7v1.8h2v-1.5H6v-1.5h1.2l1-1a3 3 0 0 0 2.3-1zM11 5v.1",
  leave: "M9.5 5V2.5h-7v11h7V11M6 8h8m-2.5-2.5L14 8l-2.5 2.5",
  up: "M8 13V3M4 7l4-4 4 4",
  downArrow: "M8 3v10M4 9l4 4 4-4",
  person: "M8 8a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM2.5 14c.6-2.8 2.8-4 5.5-4s4.9 1.2 5.5 4",
  reset: "M3 8a5 5 0 1 0 1.6-3.7M3 2.5v2.5h2.5",
  report: "M3.5 1.8h6l3 3v9.4h-9zM6 11.5v-2m2.2 2V7m2.2 4.5V8.5",
  message: "M4 11V7a4 4 0 0 1 8 0v4l1.2 1.5H2.8zM6.5 14.5h3",
  clock: "M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM8 4.5V8l2.3 1.6",
} as const;

export type IconName = keyof typeof paths;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg
      viewBox="0 0 16 16"
      width={size}
      height={size}
      fill="none"
      stroke="currentColor"
      strokeWidth={1.5}
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      className="shrink-0"
    >
      <path d={paths[name]} />
    </svg>
  );
}
