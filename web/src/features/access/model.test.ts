import { expect, test } from "vitest";
import type { AccessToken, AuditEntry, Me, User } from "@/api/types";
import { accessOf, boundTo, detailOf, may, wordsOf } from "./model";

const me = (scopes: Me["scopes"]) => ({ scopes }) as Me;
const user = (some: Partial<User>) => ({ role: null, team_role: null, teams: [], ...some }) as User;

test("a scope contains the weaker ones", () => {
  expect(may(me(["act"]), "respond")).toBe(true);
  expect(may(me(["act"]), "admin")).toBe(false);
  expect(may(me(["report"]), "read")).toBe(true);
  expect(may(me([]), "read")).toBe(false);
  expect(may(undefined, "read")).toBe(false);
});

test("the access of a user in words", () => {
  expect(accessOf(user({}))).toBe("No access");
  expect(accessOf(user({ role: "viewer", team_role: "operator", teams: ["a", "b"] }))).toBe(
    "Viewer of the fleet · Operator of a, b",
  );
});

test("what a token is bound to", () => {
  const token = { user: "bob", node: null, job: null, team: "vision", racks: null } as AccessToken;
  expect(boundTo(token)).toBe("user bob · team vision");
});

test("words of a field", () => {
  expect(wordsOf(" a, b\nc ")).toEqual(["a", "b", "c"]);
  expect(wordsOf("")).toEqual([]);
});

test("the detail of an act leaves out what is empty", () => {
  const detail = { reason: "fan", node: null, teams: [], nodes: ["n1", "n2"] };
  expect(detailOf({ detail } as unknown as AuditEntry)).toBe("Reason: fan · Nodes: n1, n2");
});
