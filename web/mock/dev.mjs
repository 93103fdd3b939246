// The mock server and Vite's development server together: `npm run dev:mock -- --scenario busy`.
import { spawn } from "node:child_process";

const port = "8090";
const run = (command, args, env = {}) =>
  spawn(command, args, { stdio: "inherit", env: { ...process.env, ...env } });
const children = [
  run(process.execPath, [
    new URL("server.mjs", import.meta.url).pathname,
    "--port",
    port,
    ...process.argv.slice(2),
  ]),
  run("npx", ["vite"], { MAINSTAY_API: `http://127.0.0.1:${port}` }),
];
function stop() {
  for (const child of children) child.kill();
}
for (const child of children) child.on("exit", stop);
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, stop);
