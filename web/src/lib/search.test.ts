import { describe, expect, it } from "vitest";
import { localPath, natural, number, oneOf, text } from "./search";

describe("search parameters from anywhere", () => {
  it("keeps well-formed values and drops the rest", () => {
    expect(text({ q: "rack01" }, "q")).toBe("rack01");
    expect(text({ q: 7 }, "q")).toBe("7");
    expect(text({ q: { a: 1 } }, "q")).toBeUndefined();
    expect(oneOf({ state: "healthy" }, "state", ["healthy", "suspect"])).toBe("healthy");
    expect(oneOf({ state: "<script>" }, "state", ["healthy"])).toBeUndefined();
    expect(number({ from: "12.5" }, "from")).toBe(12.5);
    expect(number({ from: "" }, "from")).toBeUndefined();
    expect(number({ from: "NaN" }, "from")).toBeUndefined();
    expect(natural({ rank: 3 }, "rank")).toBe(3);
    expect(natural({ rank: -1 }, "rank")).toBeUndefined();
    expect(natural({ rank: 1.5 }, "rank")).toBeUndefined();
  });

  it("never leads to another site after sign-in", () => {
    expect(localPath({ next: "/jobs/a?rank=1" }, "next")).toBe("/jobs/a?rank=1");
    for (const evil of [
      "https://evil.example",
      "//evil.example",
      "/\\evil.example",
      "javascript:alert(1)",
      "",
    ]) {
      expect(localPath({ next: evil }, "next")).toBeUndefined();
    }
  });
});
