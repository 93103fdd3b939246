import { describe, expect, it } from "vitest";
import { nextSelection, silenceDraft } from "./selection";

const set = (...names: string[]) => new Set(names);

describe("nextSelection", () => {
  it("replaces, adds, and toggles", () => {
    expect(nextSelection(set("a"), ["b"], "replace")).toEqual(set("b"));
    expect(nextSelection(set("a"), ["b"], "add")).toEqual(set("a", "b"));
    expect(nextSelection(set("a"), ["a", "b"], "toggle")).toEqual(set("a", "b"));
    expect(nextSelection(set("a", "b", "c"), ["a", "b"], "toggle")).toEqual(set("c"));
  });

  it("leaves the old selection as it is", () => {
    const old = set("a");
    nextSelection(old, ["a"], "toggle");
    expect(old).toEqual(set("a"));
  });
});

describe("silenceDraft", () => {
  const places = [
    { node: "a", rack: "r1" },
    { node: "b", rack: "r1" },
    { node: "c", rack: "r2" },
    { node: "d", rack: "r2" },
  ];

  it("names whole racks", () => {
    expect(silenceDraft(set("a", "b"), places)).toMatchObject({ racks: "r1", nodes: "" });
  });

  it("names nodes where a rack is not complete, or its name is a pattern", () => {
    expect(silenceDraft(set("a", "b", "c"), places)).toMatchObject({ racks: "", nodes: "a b c" });
    expect(silenceDraft(set("a"), [{ node: "a", rack: "r*" }])).toMatchObject({ racks: "", nodes: "a" });
    expect(silenceDraft(set("a"), [{ node: "a", rack: "" }])).toMatchObject({ racks: "", nodes: "a" });
  });

  it("needs no more names than a silence takes", () => {
    const many = set(...Array.from({ length: 201 }, (_, i) => `n${i}`));
    expect(silenceDraft(many, places)).toBeNull();
  });
});
