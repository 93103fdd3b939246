/** A user changes their own password, which signs them out. */
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import { Field, Input } from "@/ui/field";
import { FormDialog } from "@/ui/form-dialog";

export function PasswordDialog({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const [current, setCurrent] = useState("");
  const [password, setPassword] = useState("");
  return (
    <FormDialog
      title="Change password"
      about="This signs you out everywhere."
      verb="Change password"
      blocked={!current || password.length < 15}
      run={() => unwrap(client.PUT("/v1/auth/password", { body: { current_password: current, password } }))}
      onClose={onClose}
      onDone={() => void navigate({ to: "/sign-in", search: {} })}
    >
      <Field label="Current password">
        {(id) => (
          <Input
            id={id}
            type="password"
            autoFocus
            autoComplete="current-password"
            value={current}
            onChange={(event) => setCurrent(event.target.value)}
          />
        )}
      </Field>
      <Field label="New password" hint="At least 15 characters.">
        {(id) => (
          <Input
            id={id}
            type="password"
            autoComplete="new-password"
            value={password}
            onChange={(event) => setPassword(event.target.value)}
          />
        )}
      </Field>
    </FormDialog>
  );
}
