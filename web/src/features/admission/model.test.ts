import { expect, it } from "vitest";
import type { NodeAdmission } from "@/api/types";
import { deniedUnknown, listed } from "./model";

type Reason = NodeAdmission["reasons"][number];
const node = (decision: NodeAdmission["decision"], ...codes: Reason["code"][]): NodeAdmission => ({
  node: codes.join(),
  decision,
  reasons: codes.map((code) => ({
    code,
    decision: code === "validation_old" ? "allow_degraded" : "deny",
    text: "",
  })),
  state: null,
  verdict: null,
  suite: null,
  validated_at: null,
});

it("reads names of racks that contain spaces", () => {
  expect(listed(" hall 2 r1, r2,,r2 ")).toEqual(["hall 2 r1", "r2"]);
  expect(listed(" ")).toEqual([]);
});

it("separates unknown nodes from bad ones", () => {
  expect(
    deniedUnknown([
      node("deny", "never_validated"),
      node("deny", "silent", "validation_old"),
      node("deny", "never_validated", "finding"),
      node("allow_degraded", "validation_old"),
      { ...node("deny", "state"), state: "quarantined" },
      { ...node("deny", "state", "silent"), state: "unknown" },
    ]),
  ).toBe(3);
});
