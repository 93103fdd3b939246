/** An admin sets the password of a local user. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, unwrap } from "@/api/client";
import { Field, Input } from "@/ui/field";
import { FormDialog } from "@/ui/form-dialog";
import { useToast } from "@/ui/toast";
import { accessKeys } from "./queries";

export function UserPasswordDialog({ name, onClose }: { name: string; onClose: () => void }) {
  const queryClient = useQueryClient();
  const toast = useToast();
  const [password, setPassword] = useState("");
  return (
    <FormDialog
      title={`Set the password of ${name}`}
      about="This signs the user out everywhere."
      verb="Set password"
      blocked={password.length < 15}
      run={() =>
        unwrap(client.PUT("/v1/users/{name}/password", { params: { path: { name } }, body: { password } }))
      }
      onClose={onClose}
      onDone={() => {
        void queryClient.invalidateQueries({ queryKey: accessKeys.all });
        toast(`${name} has a new password`);
        onClose();
      }}
    >
      <Field label="New password" hint="At least 15 characters.">
        {(id) => (
          <Input
            id={id}
            type="password"
            autoFocus
            autoComplete="new-password"
            value={password}
            onChange={(event) => setPassword(event.target.value)}
          />
        )}
      </Field>
    </FormDialog>
  );
}
