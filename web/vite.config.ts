import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync } from "node:zlib";
import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

// Where `npm run dev` finds the service; the mock server sets its own address.
const api = process.env.MAINSTAY_API ?? "http://127.0.0.1:8080";

/** Put each script and style sheet beside itself, compressed as well as can be: the service has no time for that. */
const compressed: Plugin = {
  name: "compressed",
  apply: "build",
  writeBundle({ dir = "dist" }) {
    const assets = join(dir, "assets");
    for (const name of readdirSync(assets).filter((name) => /\.(js|css)$/.test(name))) {
      writeFileSync(join(assets, `${name}.br`), brotliCompressSync(readFileSync(join(assets, name))));
    }
  },
};

export default defineConfig({
  plugins: [react(), tailwindcss(), compressed],
  resolve: { alias: { "@": new URL("./src", import.meta.url).pathname } },
  server: { proxy: { "/v1": api, "/openapi.json": api } },
  build: {
    target: "es2022",
    chunkSizeWarningLimit: 800,
    rolldownOptions: {
      output: {
        // One file for all that several pages share: by default, each set of modules that the same pages share is a file,
        // dozens of a few hundred bytes, each a request.
        codeSplitting: { groups: [{ name: "common", minShareCount: 2 }] },
      },
    },
  },
  test: { include: ["src/**/*.test.ts", "src/**/*.test.tsx"], environment: "node" },
});
