/** Actions on the page of an incident: download its post-mortem, or share it by a link that expires. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, idempotencyKey, unwrap } from "@/api/client";
import { incidentKeys } from "@/features/incidents/queries";
import { Clock } from "@/ui/age";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/copy";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { Icon } from "@/ui/icon";
import { Menu, MenuItem } from "@/ui/menu";
import { ErrorNotice } from "@/ui/notice";
import { Segmented } from "@/ui/segmented";

export function PostMortemMenu({ incident }: { incident: string }) {
  const [sharing, setSharing] = useState(false);
  return (
    <>
      <Menu
        trigger={
          <Button>
            Post-mortem
            <Icon name="down" size={13} />
          </Button>
        }
      >
        <MenuItem
          onSelect={() =>
            window.location.assign(`/v1/incidents/${encodeURIComponent(incident)}/post-mortem.md`)
          }
        >
          Download post-mortem
        </MenuItem>
        <MenuItem onSelect={() => setSharing(true)}>Share</MenuItem>
      </Menu>
      {sharing && <ShareDialog incident={incident} onClose={() => setSharing(false)} />}
    </>
  );
}

const DAY = 86_400;
const lifetimes = [
  { value: "1", label: "1 day" },
  { value: "7", label: "7 days" },
  { value: "30", label: "30 days" },
] as const;

function ShareDialog({ incident, onClose }: { incident: string; onClose: () => void }) {
  const queryClient = useQueryClient();
  const [days, setDays] = useState<(typeof lifetimes)[number]["value"]>("7");
  const share = useMutation({
    mutationFn: () =>
      unwrap(
        client.POST("/v1/incidents/{id}:share", {
          params: { path: { id: incident } },
          body: { expires_in: Number(days) * DAY },
          headers: idempotencyKey(),
        }),
      ),
    onSuccess: () => queryClient.invalidateQueries({ queryKey: incidentKeys.all }),
  });
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Share the post-mortem"
      about="Everybody who has the link can read this post-mortem until the link expires. It cannot be withdrawn. The timeline records it with your name."
    >
      <div className="flex flex-col gap-4">
        {share.data ? (
          <>
            <Field
              label="Link"
              hint={
                <>
                  Valid until <Clock at={share.data.expires_at} />.
                </>
              }
            >
              {(id) => (
                <Input
                  id={id}
                  readOnly
                  autoFocus
                  value={share.data.url}
                  onFocus={(event) => event.target.select()}
                />
              )}
            </Field>
            <div className="flex justify-end gap-2">
              <CopyButton text={share.data.url} label="Copy link" />
              <Button onClick={onClose}>Done</Button>
            </div>
          </>
        ) : (
          <>
            <div className="flex items-center gap-3">
              <span className="font-medium text-sm">Valid for</span>
              <Segmented label="Valid for" value={days} onChange={setDays} options={lifetimes} />
            </div>
            {share.isError && <ErrorNotice error={share.error} />}
            <div className="flex justify-end gap-2">
              <Button onClick={onClose}>Cancel</Button>
              <Button kind="primary" busy={share.isPending} onClick={() => share.mutate()}>
                Create link
              </Button>
            </div>
          </>
        )}
      </div>
    </Dialog>
  );
}
