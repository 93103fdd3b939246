import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Providers } from "./app/providers";
import { router } from "./app/router";
import { startTheme } from "./app/theme";
import "./styles.css";

startTheme();
const host = document.getElementById("root");
if (!host) throw new Error("index.html has no #root");
createRoot(host).render(
  <StrictMode>
    <Providers>
      <RouterProvider router={router} />
    </Providers>
  </StrictMode>,
);
