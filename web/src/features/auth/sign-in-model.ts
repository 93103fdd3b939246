/** Why a sign-in through the provider was refused, in sentences. */
export const refusals: Record<string, string> = {
  openid_denied: "The provider did not sign you in.",
  openid_expired: "The sign-in took too long, or began in another browser. Try again.",
  openid_failed:
    "The provider could not be asked, or its answer was not valid. The log of the service says why.",
  no_access:
    "You are signed in at the provider, but no role lets you see anything here. Ask an administrator.",
  disabled: "Your user is disabled. Ask an administrator.",
};
